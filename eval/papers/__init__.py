"""What comes out where a paper is run again: its methods, its tasks, its tables."""
