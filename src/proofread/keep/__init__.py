"""What is kept on disk, and by what it is known."""
