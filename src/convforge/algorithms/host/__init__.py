"""Host code that several families of methods share."""
