//! What the node agent keeps on disk and reads from files that containers write.
