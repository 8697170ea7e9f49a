"""Commands behind whose ``--`` a program of the user's may stand, beside arguments of their own."""

from __future__ import annotations

import click

PROGRAM = "hvdtrain.program"  # under which click's context keeps the words behind "--"


class ProgramCommand(click.Command):
    """Keeps the words behind ``--`` apart: click cannot tell a program of one word from a file to read."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, with what stands before."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[PROGRAM] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)
