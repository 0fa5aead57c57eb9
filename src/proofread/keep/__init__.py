"""Files that are kept on disk, and the digests that they are known by."""
