"""Short scripts, one for each way in which tutorials build attention."""
