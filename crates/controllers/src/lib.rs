//! Controllers, one file or folder each.
