"""convforge inside other libraries: their layers, operators and gradients. Imported on first use."""
