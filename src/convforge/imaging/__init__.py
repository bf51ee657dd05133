"""Images: their files, named kernels, `filter`, and many images at once.

Import the module you need; nothing heavy is loaded before its use.
"""
