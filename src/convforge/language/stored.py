"""Texts that runs store in English: what a method says of a problem, what a row lacks, how the machine moved.

A text that has the form of one of the phrases below is said in the language of its place, with the numbers and names
that it holds; any other stays as it was stored.
"""

from __future__ import annotations

import re
import string
from functools import cache

from convforge.language import gettext, language

__all__ = ["PHRASES", "stored"]

# Each is a stored text with names for what differs; what stands in braces may be any text without a semicolon.
PHRASES = (
    # The machine.
    "copy bandwidth moved by {share} % ({before} to {after} GB/s)",
    "the FMA peak moved by {share} % ({before} to {after} GFLOP/s)",
    # The bench's own reasons and notes.
    "a call would take about {time} ({known} for {problem}); too dear for what is left of {budget}",
    "a call would take about {time} ({known} for {problem}); the budget of {budget} was spent",
    "a call would take about {time} ({known} for {problem}); no row may take longer than {limit}",
    "a call takes {time}: too dear for what the budget has left",
    "a call would take about {time} (as {size} did); its share is {share}",
    "the truth would take about {time} ({known} for {problem}); its case has {share}",
    "inputs, truth and ring take about {needed}; of {there} of memory {share} % are for them",
    "inputs, truth and ring take about {needed}; there are {there} of memory",
    "too dear for what is left of {budget}",
    "the budget of {budget} was spent",
    "no row may take longer than {limit}",
    "a call would take about {time} ({known} for {problem})",
    "a call takes {time}",
    "the truth would take about {time} ({known} for {problem})",
    "its case has {share}",
    "its row would take about {time}, with what is cheaper and still to come {needed}",
    "its row would take about {time}",
    "{left} of {budget} are left, {kept} % of them in reserve",
    "{left} of {budget} are left",
    "its arithmetic is {own}; the problem allows {allowed}: ask for it by name",
    "weights per call: {k} of {n} samples, the budget ended",
    "prepared: {k} of {n} samples, the budget ended",
    "weights packed by oneDNN",
    "rank {rank}, factor error {error}",
    "plan {name}",
    "{count} plans: {run} run, {rest}",
    "{count} plans: {run} run",
    "excluded: tensor cores, Winograd or FFT, {count}",
    # What methods refuse.
    "the filter is {own}, not {wanted}",
    "the filter has rank {rank}: only filters of rank 1 or 2 pay",
    "its transforms are those of a {wanted} filter; this one is {own}",
    "its tiles share their transforms at stride 1 alone; the stride is {stride}",
    "its tiles are dense; the dilation is {dilation}",
    "its transforms have fractions, so integer sums would not be exact; convert w to float32",
    "spectra are rounded, so int32 sums would not be exact; convert w to float32 for float sums",
    "the factors of an integer filter are no integers in general, so int32 sums would not be exact",
    "a filter must see one channel: groups={groups} must equal C={c}",
    "channels must lie side by side: x_layout={layout} must be NHWC",
    "NumPy has no bfloat16; cast to float32",
    "sepFilter2D takes filters of rank 1; this one has rank {rank}",
    "filter2D sums {taps} taps one by one; it takes the Fourier transform from {limit} on",
    "filter2D takes the Fourier transform from {limit} taps on, here {taps}: see opencv_filter2d_dft",
    "{call} filters planes: {calls} calls a picture are beyond the {most} that it is for",
    "{call} has no epilogue {epilogue}",
    "TF32 is about float32",
    "{name} is not installed: pip install {package}",
    "the filter takes {need} bytes of shared memory; a block may spend {most} on it",
    "the filter's {count} weights take {need} bytes as {dtype}; constant memory holds {most}",
    "the pixels of a window take {need} registers; {most} are to be had",
    "a row of pixels has {row} bytes; the tensor memory accelerator takes multiples of {most}",
    "a box takes whole pixels of up to {most} channels in NHWC; these have {count}",
    "products are of bytes; these are of {pixels} and {weights} in {sums}",
    "windows must be dense; these have stride {stride} and dilation {dilation}",
    "pixels are multiplied as they are, and these have the zero point {zero}",
    "an output must stand where its pixel does: K={k} must equal C={c}",
    "outputs must lie as pixels do: {x_layout} and {out_layout}",
    "in NCHW every filter must see one channel alone",
    "C={count} channels side by side divide neither 16 bytes nor 12",
    "a row of pixels has {row} bytes; copies move multiples of {most}",
    "sums and taps take {need} registers; {most} are to be had",
    "planes must lie by themselves: NCHW, not {x_layout} and {out_layout}",
    "an output must have a plane of its own: K={k} must equal C={c}",
    "a kernel is made for one size of planes, at most {most}; these are {own}",
    "a row of {pixels} pixels and its {outputs} outputs take {need} registers; {most} are to be had",
    "a warp holds at most {most} matrices of the filter and {rows} rows of sums; these are {own} and {counted}",
    "a row has {count} windows of {outputs} outputs; a product has {most}",
    "every output must see a row of pixels: padding {top} above and {bottom} below, of windows of {rows} rows",
    "products are of 16-bit floats in float32; these are of {pixels} and {weights} in {sums}",
    "tensor cores cut sums off, which 16-bit floats hide: outputs must be such, not {dtype}",
    "zeros must stand outside the picture, not {border}",
    "rows are copied in words of two pixels: W={w} must be even",
    # What other libraries refuse.
    "{name} takes float32, the same for x, w and the output",
    "cuDNN is asked for float32, float16 and bfloat16 alone, the same for x, w and the output",
    "cuDNN pads with zeros, and is measured without an epilogue",
    "PyTorch converts no {dtype} on a GPU; cast to float32",
    "{call} filters channels by themselves; it adds up none",
    "{call} has the border {own} alone; the problem's is {border}",
    "{call} is called for {types}; x is {dtype}",
    "{call} cuts the fractions of {dtype} sums off; the problem rounds them",
    "{call} has one filter for all channels of a pixel; here each has its own",
    "one filter for all channels",
    # Why a profiler counted nothing.
    "NVIDIA's profiler ncu is not installed",
    "ncu did not end within {limit}",
    "ncu cannot be run: {fault}",
    "ncu ended with {code}: {fault}",
    "ncu saw {seen} launches where {asked} were asked for, or others",
    "ncu has no {metrics} on this GPU",
)

# The name of another library's algorithm is the same in every language.
NAME = re.compile("[A-Z][A-Z0-9_]+")


def stored(text: str) -> str:
    """A stored text in the language of this place; as it stands where it has no known form.

    Examples
    --------
    >>> stored("the filter is 5x5, not 1x1")
    'the filter is 5x5, not 1x1'
    """
    if language() == "en":
        return text
    if (said := _said(text)) is not None:
        return said
    parts = [part if NAME.fullmatch(part) else _said(part) for part in text.split("; ")]
    return text if None in parts else gettext("; ").join(part for part in parts if part is not None)


def _said(text: str) -> str | None:
    for phrase, form in _forms():
        if found := form.fullmatch(text):
            return gettext(phrase).format(**found.groupdict())
    return None


@cache
def _forms() -> list[tuple[str, re.Pattern[str]]]:
    return [(phrase, _form(phrase)) for phrase in PHRASES]


def _form(phrase: str) -> re.Pattern[str]:
    parts = ((re.escape(words), name) for words, name, _, _ in string.Formatter().parse(phrase))
    return re.compile("".join(words + (f"(?P<{name}>[^;]+)" if name else "") for words, name in parts))
