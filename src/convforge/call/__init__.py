"""A call: from users' arguments to a launch, and back to an array of the caller's library."""
