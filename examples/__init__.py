"""Short runnable scripts, one for each way in which tutorials build an attention."""
