"""Integrations of convforge into other libraries: operators, layers, gradients. Imported on first use."""
