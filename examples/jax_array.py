"""Convolve JAX arrays on their own device.

    python examples/jax_array.py                  # JAX's default device
    python examples/jax_array.py --device cpu

Call convforge outside of JAX's jit, grad and vmap, because these trace functions without numbers.
"""

from __future__ import annotations

import argparse
import importlib.util

import numpy as np

import convforge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="by default JAX's own choice")
    given = parser.parse_args()
    if importlib.util.find_spec("jax") is None:
        print("JAX is not installed: pip install jax; there is nothing to show without it.")
        return
    import jax

    backend = {"cuda": "gpu", "cpu": "cpu", None: None}[given.device]
    device = jax.devices(backend)[0]
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.device_put(jax.random.normal(keys[0], (4, 3, 64, 64)), device)
    w = jax.device_put(jax.random.normal(keys[1], (8, 3, 3, 3)), device)
    brighter = jax.jit(lambda picture: 2 * picture + 1)

    y = convforge.conv2d(brighter(x), w, padding=1, activation="relu")
    expected = jax.nn.relu(jax.lax.conv_general_dilated(brighter(x), w, (1, 1), "SAME", precision="highest"))
    np.testing.assert_allclose(np.asarray(y), np.asarray(expected), atol=1e-4, rtol=1e-4)
    print(f"{type(y).__name__} of shape {y.shape} on {y.devices()}, as jax.lax has it")
    try:
        jax.jit(lambda picture: convforge.conv2d(picture, w))(x)
    except TypeError as refusal:
        print(f"under jit: {refusal}")


if __name__ == "__main__":
    main()
