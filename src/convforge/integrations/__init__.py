"""convforge inside other libraries: layers, operators and gradients of theirs. Imported when asked for."""
