"""Pictures in and out, and the kernels that go over them.

Four rooms: `files` reads and writes pictures, `kernels` turns words into matrices, `convert` changes sample types,
`photographs` finds real pictures to try things on. Import the room you need; nothing heavy is loaded before its use.
"""
