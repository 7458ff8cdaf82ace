//! Paths below a root, a volume or an image that somebody else shapes.
