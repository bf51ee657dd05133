"""FFTs by SciPy, on the CPU and for the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.backends.fft import RealFft
from convforge.backends.forks import no_fork


class HostFft:
    """A :class:`RealFft` by :mod:`scipy.fft`, which returns arrays of its own: they are copied to their place."""

    workspace_bytes = 0

    def __init__(self, fft: RealFft, workers: int) -> None:
        self.fft = fft
        self.kernel = "scipy_irfft2" if fft.inverse else "scipy_rfft2"
        self._workers = workers
        self._complex = np.result_type(fft.dtype, np.complex64)

    def __call__(self, data: Any, workspace: Any = None, stream: Any = None) -> None:
        """See :class:`convforge.backends.fft.Transform`."""
        what = self.fft
        reals = data.view(what.dtype).reshape(what.reals)[:, :, : what.size_w]
        spectra = data.view(self._complex).reshape(what.complexes)[:, :, : what.size_w // 2 + 1]
        with no_fork():  # before a fork SciPy ends its threads, and refuses what comes until it is over
            from scipy import fft

            if what.inverse:
                reals[...] = fft.irfft2(spectra, (what.size_h, what.size_w), norm="forward", workers=self._workers)
            else:
                spectra[...] = fft.rfft2(reals, workers=self._workers)
