# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`python -m mori_gemm_ar`: the command line, or what to install for it."""

from __future__ import annotations

import sys

NEEDS = ("typer", "rich")  # the extra [cli]


def main() -> None:
    """Run the command line. Exit 2 with the extra's name when what it needs is not installed."""
    try:
        from mori_gemm_ar.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDS:
            raise
        print(f"{error.name} must be installed for the command line; pip install 'mori_gemm_ar[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    app(prog_name="python -m mori_gemm_ar")


if __name__ == "__main__":
    main()
