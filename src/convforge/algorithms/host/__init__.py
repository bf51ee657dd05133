"""What kernels of several families share: reading a padded row of the picture, storing a row of sums."""
