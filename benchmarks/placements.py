"""Placements beside llama.cpp's own log: which device has which layer, and which matrices lie in host memory.

    python benchmarks/placements.py --bin build/bin/llama-bench --dense dense.gguf --moe moe.gguf
    python benchmarks/placements.py ... --rpc 127.0.0.1:50061,127.0.0.1:50062     # rpc-servers stand in for GPUs

Runs `llama-bench -v` once a case and reads the lines "layer 3 assigned to device CUDA0" and "tensor ... buffer type
overridden to CPU". Cases with `-ts` need two devices and are left out where fewer are found. Prints a Markdown table;
exit code 1 where hprof places otherwise. `-ngl 0` leaves the output to llama.cpp's CPU; hprof keeps that matrix
resident all the same, which the table does not show.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from executor.model import Model
from executor.models.load import load_model
from executor.placement.place import first_resident_layer, is_movable, layers_to_devices, place
from executor.units import number_ranges

_LAYER: Final = re.compile(r"layer\s+(\d+) assigned to device (\S+?),?(?:\s|$)")
_OVERRIDDEN: Final = re.compile(r"tensor (\S+) .*buffer type overridden to (\S+)")


@dataclass(frozen=True, slots=True)
class Case:
    """One placement, as its options; `split` has a share a device, and empty means one device."""

    n_gpu_layers: int = 99
    overrides: str = ""
    n_cpu_moe: int = 0
    split: tuple[int, ...] = ()
    of_moe: bool = False

    @property
    def words(self) -> list[str]:
        """llama-bench's words for it."""
        words = ["-ngl", str(self.n_gpu_layers)]
        words += ["-ot", self.overrides] if self.overrides else []
        words += ["-ncmoe", str(self.n_cpu_moe)] if self.n_cpu_moe else []
        return words + (["-ts", "/".join(map(str, self.split))] if self.split else [])


# For a dense model of 8 layers and a MoE model of 6; on others the same options place other layers.
CASES: Final = (
    *(Case(n) for n in (0, 1, 2, 8, 9, 99, -1)),
    Case(split=(1, 1)),
    Case(split=(3, 1)),
    Case(5, split=(1, 1)),
    Case(7, split=(1, 3)),
    Case(2, split=(1, 1)),
    Case(overrides=r"ffn_(gate|up|down).*=CPU"),
    Case(overrides=r"blk\.[0-2]\.ffn_up=CPU;attn_k=CPU"),
    Case(overrides=r"blk\.[[:digit:]]\.ffn_down=CPU", split=(1, 1)),
    Case(4, overrides=r"blk\.7\.=CPU"),
    Case(n_cpu_moe=2, of_moe=True),
    Case(3, n_cpu_moe=6, of_moe=True),
    Case(n_cpu_moe=1, overrides=r"blk\.5\.ffn_.*_exps=CPU", of_moe=True, split=(1, 1)),
)


@dataclass(frozen=True, slots=True)
class Placed:
    """Device of each layer and, last, of the output (-1: the CPU), and the matrices of layers in host memory."""

    devices: tuple[int, ...]
    host: frozenset[str]

    def __str__(self) -> str:
        layers = {}
        for device in sorted(set(self.devices)):
            layers[device] = [layer for layer, its in enumerate(self.devices) if its == device]
        told = [f"{'CPU' if device < 0 else device}: {number_ranges(of)}" for device, of in layers.items()]
        return f"{'; '.join(told)}; {len(self.host)} matrices on the host"


def by_llama_cpp(log: str, model: Model) -> Placed:
    """What the log of one load says. Raises SystemExit where it names no layer."""
    named = {int(found[1]): found[2] for found in _LAYER.finditer(log)}
    if sorted(named) != list(range(len(model.shape.layers) + 1)):
        raise SystemExit(f"llama-bench -v names no devices of layers; its last words: {log[-400:]}")
    order = sorted({name for name in named.values() if name != "CPU"})
    devices = tuple(order.index(named[i]) if named[i] != "CPU" else -1 for i in sorted(named))
    moved = {found[1]: found[2] for found in _OVERRIDDEN.finditer(log)}
    host = {
        tensor.name
        for tensor in model.tensors.values()
        if is_movable(tensor)
        and tensor.layer is not None
        and (moved[tensor.name] == "CPU" if tensor.name in moved else devices[tensor.layer] < 0)
    }
    return Placed(devices, frozenset(host))


def by_hprof(case: Case, model: Model) -> Placed:
    """What hprof places; what `-ngl` leaves in host memory is shown as the CPU's."""
    n_layers = len(model.shape.layers)
    first = first_resident_layer(n_layers, case.n_gpu_layers)
    device_of = layers_to_devices(n_layers, case.split or (1,), first)
    placement = place(
        model.tensors,
        overrides=case.overrides or None,
        n_cpu_moe=case.n_cpu_moe,
        n_gpu_layers=case.n_gpu_layers,
        device_of=device_of,
    )
    devices = [-1 if layer < first else device for layer, device in enumerate(device_of)]
    return Placed(tuple(devices), placement.host)


def load_log(binary: str, model: str, words: Sequence[str]) -> str:
    """What llama-bench says of loading `model` with `words`."""
    command = [binary, "-m", model, "-p", "8", "-n", "0", "-r", "1", "-v", *words]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600, check=False)
    return done.stdout + done.stderr


def main() -> int:
    """Print the table; 1 where a placement differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="llama-bench")
    parser.add_argument("--dense", required=True, help="a dense GGUF")
    parser.add_argument("--moe", required=True, help="a GGUF with experts")
    parser.add_argument("--rpc", help="rpc-servers in place of GPUs: HOST:PORT,HOST:PORT")
    options = parser.parse_args()
    served = ["--rpc", options.rpc] if options.rpc else []
    paths = {False: options.dense, True: options.moe}
    models = {of_moe: load_model(path) for of_moe, path in paths.items()}
    n_found = len(set(re.findall(r"using device (\S+)", load_log(options.bin, options.dense, ["-ngl", "99", *served]))))
    differ = 0
    print("| options | llama.cpp's log | hprof |\n|---|---|---|")
    for case in CASES:
        if len(case.split) > n_found:
            continue
        # one device where nothing is split: llama.cpp would split over all it finds, by their free memory
        alone = [] if case.split or n_found < 2 else ["-ts", "/".join(["1", *["0"] * (n_found - 1)])]
        log = load_log(options.bin, paths[case.of_moe], [*case.words, *alone, *served])
        logged, placed = by_llama_cpp(log, models[case.of_moe]), by_hprof(case, models[case.of_moe])
        differ += logged != placed
        spelled = " ".join(case.words).replace("|", r"\|")
        print(f"| `{spelled}` | {logged} | {'the same' if logged == placed else placed} |", flush=True)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
