"""``hvdtrain advise --measured``: from the command line's words to what is asked, and to a document."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hvdtrain.errors import InputError

if TYPE_CHECKING:
    from hvdtrain.scaling.measured_input import Measured

# What cannot go with measured throughputs, and what to do instead.
OF_PROFILE = {
    "energy_price": "throughputs tell no power; add what a GPU-hour takes in energy to --price",
    "target_steps": "throughputs tell no steps; give --samples, the samples to do in all",
}
OF_MEASURED = ("params", "batch_per_gpu", "accumulate", "predict", "compression", "samples")


def answer_measured(text: str, options: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The document of ``--measured``, and whether a limit that was set does not hold.

    Raises:
        InputError: A value that is none, or an option without another that it needs.
    """
    from hvdtrain.scaling.advice_document import measured_document
    from hvdtrain.scaling.measured_answer import answer

    measured = _measured(text, options)
    found = answer(measured)
    document = measured_document(measured, found)
    document["gates"] = [asdict(gate) for gate in found.gates]
    if options["samples"] is not None:
        document["samples"] = measured.samples
    return document, found.is_refused


def _measured(text: str, options: dict[str, Any]) -> Measured:
    from hvdtrain.scaling.measured_gates import Limits
    from hvdtrain.scaling.measured_input import Measured, read_amount, read_rows

    rows = read_rows(text)
    _check(options)
    return Measured(
        rows=rows,
        params=read_amount(options["params"]),
        predict=_counts(options, max(rows)),
        max_gpus=options["max_gpus"],
        gpus_per_node=options["gpus_per_node"],
        network=options["network"],
        batch_per_gpu=options["batch_per_gpu"],
        accumulate=options["accumulate"] or 1,
        bytes_per_param=2.0 if options["compression"] in ("fp16", "bf16") else 4.0,
        price=options["price"],
        samples=read_amount(options["samples"], "--samples") if options["samples"] else 1e6,
        limits=Limits(options["min_efficiency"], options["deadline"], options["budget"]),
    )


def _check(options: dict[str, Any]) -> None:
    """What is asked can be told from what is given."""
    if options["params"] is None:
        do = "give the model's number of parameters, such as --params 25.6M"
        raise InputError("the bytes that a step reduces are not known", where="--measured", do=do)
    for name in ("deadline", "budget"):
        if options[name] is not None and options["samples"] is None:
            do = "give --samples, such as --samples 115M"
            raise InputError("throughputs do not tell how much there is to do", where=f"--{name}", do=do)
    if options["budget"] is not None and options["price"] is None:
        raise InputError("a budget needs a price", where="--budget", do="give --price, that of a GPU-hour")
    if options["predict"] is not None and options["max_gpus"] is not None:
        raise InputError(
            "both say which numbers of GPUs to predict", where="--predict and --max-gpus", do="give one"
        )


def _counts(options: dict[str, Any], largest: int) -> tuple[int, ...]:
    """Asked for; else doublings of the largest row up to ``--max-gpus`` and that; else three of them."""
    from hvdtrain.scaling.measured_input import MAX_GPUS, read_counts

    if options["predict"] is not None:
        return read_counts(options["predict"])
    limit = options["max_gpus"]
    if limit is None:
        return tuple(largest * factor for factor in (2, 4, 8) if largest * factor <= MAX_GPUS) or (largest,)
    doublings = [largest * 2**i for i in range(1, limit.bit_length())]
    return tuple(sorted({*(one for one in doublings if one <= limit), limit}))
