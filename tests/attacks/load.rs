//! Strangers that ask for too much, too slowly or for too long, and peers that answer so.
