# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Package metadata. The version lives in mori_gemm_ar/__init__.py and is read here without importing it."""

import ast
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent


def read_version():
    """Return the literal assigned to ``__version__`` in the package."""
    tree = ast.parse((HERE / "mori_gemm_ar" / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", None) == "__version__" for t in node.targets):
            return ast.literal_eval(node.value)
    raise RuntimeError("mori_gemm_ar/__init__.py must assign __version__ a string literal")


EXTRAS = {
    "compile": ["flydsl==0.5.0"],
    "cli": ["typer", "rich"],
    "rocm": ["amd-mori>=1.2.4"],
    "plot": ["matplotlib"],
}
TEST_TOOLS = [
    "pytest",
    "pytest-xdist",
    "hypothesis",
    "ruff",
    "mypy",
    "setuptools>=77.0.3",
    # Ships the machine-readable CDNA pseudocode that the instruction tests compare with.
    'tinygrad; python_version >= "3.11"',
]
# [rocm] stays out: amd-mori needs a ROCm machine.
EXTRAS["dev"] = EXTRAS["compile"] + EXTRAS["cli"] + EXTRAS["plot"] + TEST_TOOLS

setup(
    name="mori_gemm_ar",
    version=read_version(),
    description="Tensor-parallel fp8 GEMM fused with its all-reduce for AMD MI355X, testable without a GPU",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="mori_gemm_ar contributors",
    license="MIT",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
    ],
    packages=find_packages(include=["mori_gemm_ar", "mori_gemm_ar.*"]),
    package_data={"mori_gemm_ar": ["py.typed", "kernels/device/*.ll", "model/*.json", "proof/*.json"]},
    include_package_data=False,
    zip_safe=False,
    python_requires=">=3.10,<3.14",
    # Loaded by SGLang in each of its processes; does nothing unless it is switched on.
    entry_points={"sglang.srt.plugins": ["mori_gemm_ar = mori_gemm_ar.integrations.sglang:register"]},
    install_requires=["torch>=2.6", "numpy"],
    extras_require=EXTRAS,
)
