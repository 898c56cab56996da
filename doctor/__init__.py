"""What can this machine run, and what is missing? Looks and changes nothing; asks the network only where told to."""
