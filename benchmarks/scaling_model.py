"""What training in many processes must move, hold and wait for, by arithmetic.

Times are the least that a link allows: bytes over its rate, and the steps of a ring over its latency. What overlaps
with the backward pass, and what of a link's rate a library reaches, is left to whoever measures.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOAT = 4
GPUS_A_NODE = 8
# microseconds a step of a ring takes inside a node and between two (NVIDIA/nccl, src/graph/tuning.cc, hwLat, LL128)
HOP_INSIDE, HOP_BETWEEN = 1.9e-6, 4.0e-6


@dataclass(frozen=True)
class Link:
    """How 8 GPUs of a node and how nodes are connected: bytes a second in one direction, of a GPU and of a node."""

    name: str
    gpu: float
    node: float
    source: str


@dataclass(frozen=True)
class Disk:
    """Bytes a second that one writer reaches."""

    name: str
    rate: float
    source: str


LINKS = {
    "h100-infiniband": Link(
        "NVLink 4, 8 × 400 Gb/s InfiniBand a node", 450e9, 400e9, "NVIDIA, data sheet of the DGX H100"
    ),
    "a100-infiniband": Link(
        "NVLink 3, 8 × 200 Gb/s InfiniBand a node", 300e9, 200e9, "NVIDIA, data sheet of the DGX A100"
    ),
    "a100-cloud": Link("NVLink 3, 400 Gb/s a node", 300e9, 50e9, "Amazon, EC2 p4d.24xlarge"),
    "ethernet": Link("PCIe 4 × 16, 100 Gb/s Ethernet a node", 31.5e9, 12.5e9, "PCI-SIG; IEEE 802.3bj"),
}
DISKS = {
    "volume": Disk("network volume", 125e6, "Amazon EBS gp3 without extra throughput"),
    "nfs": Disk("NFS over 10 Gb/s Ethernet", 1.25e9, "the line's rate"),
    "lustre": Disk(
        "parallel file system, 1.2 TiB", 1.2e9, "Amazon FSx for Lustre, 1,000 MB/s for each TiB of storage"
    ),
    "nvme": Disk("NVMe drive", 4e9, "Samsung PM9A3, sequential writing"),
}


@dataclass(frozen=True)
class Exchange:
    """Bytes that the loss makes a process send, and as many that it receives, in a step."""

    forward: int
    backward: int
    accuracy: int

    @property
    def all(self) -> int:
        return self.forward + self.backward + self.accuracy


def loss_exchange(loss: str, with_grad: bool, world: int, batch: int, embed: int) -> Exchange:
    """What the gathered loss "clip" or "siglip" exchanges, for a global `batch`, in float32.

    Forward, an all-gather of the features: both towers', or the texts' alone for the sigmoid loss. Backward, where
    gradients flow to the other processes' features, a reduce-scatter of their gradients. `accuracy` is the gather of
    both that the accuracy of a step takes.
    """
    one = FLOAT * embed * (batch // world) * (world - 1)
    gathered = (1 if loss == "siglip" else 2) * one
    return Exchange(gathered, gathered if with_grad else 0, 2 * one)


def collective_seconds(received: float, world: int, link: Link, times: int = 1) -> float:
    """Seconds of `times` all-gathers or reduce-scatters in which each of `world` processes receives `received` bytes in
    all: through its own link, and what comes from other nodes once through the node's."""
    if world == 1:
        return 0.0
    nodes = -(-world // GPUS_A_NODE)
    from_others = received * (world - min(world, GPUS_A_NODE)) / (world - 1)
    hops = (world - nodes) * HOP_INSIDE + (nodes - 1) * HOP_BETWEEN
    return times * hops + max(received / link.gpu, from_others / link.node)


def ddp_sent(parameters: int, world: int) -> int:
    """Bytes that a process sends in a step for the mean of the gradients: a ring's all-reduce."""
    return 2 * FLOAT * parameters * (world - 1) // world


@dataclass(frozen=True)
class Sharded:
    """Bytes that a process sends in a step under FSDP: gathered weights, and gradients brought together."""

    gathered: int
    reduced: int

    @property
    def sent(self) -> int:
        return self.gathered + self.reduced


def fsdp_sent(blocks: int, rest: int, world: int, parts: int = 1) -> Sharded:
    """FSDP's traffic for `blocks` parameters in blocks and `rest` outside of them, in `parts` passes a step.

    A block is gathered for every forward and backward pass and given up in between; what belongs to no block is
    gathered once for each pair of passes. Batches in parts have one forward pass more. Gradients go out once.
    """
    passes = 2 if parts == 1 else 3 * parts
    gathered = FLOAT * (passes * blocks + parts * rest) * (world - 1) // world
    return Sharded(gathered, FLOAT * (blocks + rest) * (world - 1) // world)


def loss_saved(loss: str, with_grad: bool, share: int, world: int, embed: int) -> int:
    """Bytes that the loss keeps between its forward and backward pass, of a process's `share` of the batch: for each
    pair of its own rows and all columns one number a direction (clip), and the features that enter the products: its
    own, those times the scale where the others' need gradients, and the others'.

    On a CPU the sigmoid loss keeps three numbers a pair (logits with their signs, signs, and a buffer), and computes
    the process's own block twice where there are several processes.
    """
    batch = share * world
    own, others = FLOAT * embed * share, FLOAT * embed * batch if world > 1 else 0
    if loss == "clip":
        labels = 8 * share
        scaled = 2 * own if with_grad or world == 1 else 0
        return 2 * FLOAT * share * batch + 2 * own + scaled + 2 * others + labels
    blocks = world + (world > 1)
    return blocks * 3 * FLOAT * share * share + own * (1 + blocks) + own + others


def logits_flops(share: int, batch: int, embed: int) -> int:
    """Operations of a process for both directions' logits and their gradients."""
    return 3 * 2 * 2 * embed * share * batch


def checkpoint_bytes(parameters: int) -> int:
    """Weights and AdamW's two moments, in float32."""
    return 3 * FLOAT * parameters


def interval(cost: float, between_failures: float) -> float:
    """Seconds between two checkpoints that lose the least to both checkpoints and failures (Young 1974)."""
    return float((2 * cost * between_failures) ** 0.5)
