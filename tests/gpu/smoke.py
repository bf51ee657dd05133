"""Every method once on a small problem, for compute-sanitizer: python tests/gpu/smoke.py [PLANTED FAULT].

Every array gets memory of its own, of exactly its size, and keeps it: the sanitizer sees each byte beyond an end, and
no array passes for written because an earlier one was. Results are compared, so that what ran did what it should.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from convforge.algorithms import ON_DEVICE, refusal
from convforge.backends.cuda.arrays import DeviceArray
from convforge.backends.cuda.driver import checked
from convforge.backends.cuda.runtime import CudaRuntime
from convforge.backends.facts import DeviceFacts
from convforge.problem import parse_problem
from convforge.verify import Judge, make_inputs
from convforge.verify.inputs import output_dtype
from convforge.verify.plans import upload_inputs

# Ragged, so that no tile divides them; with a border that reads elsewhere, an epilogue, groups, both layouts.
PROBLEMS = {
    "conv2d": ("n2c3h11w13_k5r3s3_st1_p1_f32_nchw", "n1c4h9w10_k6r3s3_st2_p1_g2_reflect_f32_nhwc_+bias+residual+relu",
               "n1c3h8w9_k4r3s3_p1_f16_nchw", "n2c6h11w13_k6r3s3_p1_g6_f32_nhwc",
               "n1c3h14w16_k6r9s13_p4x6_g3_f16_nchw", "n2c3h11w12_k5r3s3_st1_p1_f32_nchw",
               "n2c3h13w80_k3r5s4_p2x3x4x1_reflect_g3_u8-i8-u8-i32_nhwc",
               "n2c5h14w14_k5r5s5_st2_p2_g5_f16_nchw", "n1c3h27w20_k3r7s7_p3_g3_f16_nchw",
               "n2c20h11w13_k9r3s3_st2_p1_f32_nhwc_+bias+relu", "n2c32h11w13_k40r3s3_st1_p1_f16_nhwc",
               "n2c40h11w13_k38r3s3_p1_u8-i8-u8-i32_nhwc_+zero:77+scale:channel+bias",
               "n2c36h11w13_k36r3s3_p1_g36_u8-i8-u8-i32_nhwc_+zero:77+scale:channel+bias",
               "n2c40h11w13_k38r3s3_p1_f8e4m3-f8e5m2-f16-f32_nhwc"),
    "gemm": ("m33n29k17_f32", "m70n72k104_f32", "m70n72k104_f16"),
    "max_pool2d": ("max_n1c2h9w10_r3s3_st2_p1_f32_nchw",),
    "relu": ("relu77_f32",),
}  # fmt: skip
FAULTS = ("overrun", "unwritten")


class Exact(CudaRuntime):
    """A runtime whose arrays have exactly the memory that they ask for, never used again."""

    def allocate(self, nbytes: int, stream: Any = None) -> DeviceArray:
        """See :class:`CudaRuntime`."""
        from cuda.bindings import driver

        self._gpu.set_current()
        address = int(checked(driver.cuMemAlloc(nbytes))) if nbytes else 0
        return DeviceArray.at(address, nbytes, None)


def posed(algorithm: Any, text: str) -> Any:
    """The problem, with the method's arithmetic allowed."""
    return parse_problem(text).allowing(algorithm.precision)


def taken(algorithm: Any, facts: DeviceFacts) -> list[str]:
    """The problems that the method computes on a device; tests ask that there is one."""
    return [text for text in PROBLEMS[algorithm.operation] if refusal(algorithm, posed(algorithm, text), facts) is None]


def run(runtime: Any, algorithm: Any, text: str, fault: str = "") -> None:
    """One call of a method's default plan; `fault` plants what the sanitizer must find."""
    problem = posed(algorithm, text)
    plan = algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime)
    inputs = make_inputs(problem)
    shape, dtype = problem.out_shape, output_dtype(problem)
    # NaN or -1 everywhere, so that the check finds what is not written: initcheck does not see what the TMA writes.
    unwritten = np.full(math.prod(shape) * dtype.itemsize, 255, np.uint8).view(dtype).reshape(shape)
    x, out = runtime.upload(inputs.x), runtime.upload(unwritten)
    if fault == "overrun":  # an output whose memory ends early
        short = runtime.allocate(out.nbytes // 2)
        out = DeviceArray.at(short.address, out.nbytes, None).view(dtype).reshape(shape)
    if fault == "unwritten":  # a picture that nobody wrote
        x = runtime.empty(inputs.x.shape, inputs.x.dtype)
    prepared = plan.prepare(None if inputs.w is None else runtime.upload(inputs.w))
    plan(plan.buffers(x, prepared, upload_inputs(runtime, inputs).operands, out))
    runtime.synchronize()
    if not fault:
        verdict = Judge(problem, inputs).verdict(algorithm.precision, runtime.download(out))
        if not verdict.ok:
            sys.exit(verdict.message)


def main() -> None:
    """Run every method; with the name of a fault, one method with that fault."""
    runtime = Exact()
    methods = [a for a in ON_DEVICE if a.backend == "cuda"]
    if len(sys.argv) > 1:
        fault = sys.argv[1]
        if fault not in FAULTS:
            sys.exit(f"{fault!r} is no fault to plant; there are {', '.join(FAULTS)}")
        run(runtime, methods[0], PROBLEMS["conv2d"][0], fault)
        return
    for algorithm in methods:
        for text in taken(algorithm, runtime.facts):
            run(runtime, algorithm, text)
            print(f"{algorithm.name} {text}", flush=True)


if __name__ == "__main__":
    main()
