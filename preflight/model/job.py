"""What the user wants to run: the content of a plan file after reading, with sizes resolved to plain numbers."""

from typing import Literal

from preflight.model.base import Noun

Backend = Literal["auto", "nccl", "gloo"]
Severity = Literal["fail", "warn", "off"]
Need = Literal["required", "advisory"]
Framework = Literal["megatron", "torchtitan", "deepspeed", "fsdp"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipe"]
Precision = Literal["bf16", "fp16", "fp32", "fp8"]
Recompute = Literal["none", "selective", "full"]
Attention = Literal["flash", "unfused"]
Optimizer = Literal["adam", "sgd", "muon"]
Launcher = Literal["slurm", "torchrun", "deepspeed", "mpi", "kubernetes"]


class ModelShape(Noun, frozen=True, kw_only=True):
    """The model. `parameters` counts weights of the whole model, as given or as computed from the shape. The rest is None where the plan
    file doesn't say: what needs it is then not estimated.

    `hidden_size` h, `ffn_size` f (of one dense layer), `attention_heads` a, `kv_heads` k (None: a), `head_dim` (None: h / a),
    `vocab_size` V (not padded), `positions`: learned position embeddings (0: none, as with rotary ones). `gated_mlp`: three MLP matrices in
    place of two (SwiGLU). `dropout`: the GPT recipe of 2019 to 2021 (LayerNorm, biases, dropout, so that its masks are kept).
    Experts: `experts` in each MoE layer, `experts_per_token` (top-k), `expert_ffn_size` of one expert, `shared_ffn_size` of all shared
    experts of a layer together (0: none), `dense_layers`: layers without experts. Multi-head latent attention: `kv_lora_rank` (None: plain
    attention), `q_lora_rank`, `qk_nope_head_dim`, `qk_rope_head_dim`, `v_head_dim`. `mtp_layers`: extra multi-token-prediction layers.
    """

    parameters: int
    layers: int
    hidden_size: int | None = None
    ffn_size: int | None = None
    attention_heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    positions: int = 0
    gated_mlp: bool = True
    dropout: bool = False
    tied_embeddings: bool = False
    experts: int | None = None
    experts_per_token: int | None = None
    expert_ffn_size: int | None = None
    shared_ffn_size: int = 0
    dense_layers: int = 0
    kv_lora_rank: int | None = None
    q_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    mtp_layers: int = 0


class Parallel(Noun, frozen=True, kw_only=True):
    """Degrees of each axis, and what decides which ranks form a group and what they hold.

    `dp` None: what is left of the world size. `etp` None: the framework's default. `order` lists axes innermost first; None: the
    framework's default. `dp_replicate`, `dp_shard`: torchtitan and FSDP/HSDP, which split dp in two (their product is dp); None: not
    said. `zero_stage` 0 to 3: what is sharded over the data-parallel ranks (1: optimizer, which Megatron calls the
    distributed optimizer; 2: and gradients; 3: and weights, which torch calls FSDP); None: the framework's default. `sequence_parallel` None: the framework's
    default. `optimizer_instances`: Megatron's num-distributed-optimizer-instances. `hierarchical_cp`: sizes whose product is cp, innermost first.
    `data_before_expert`: DeepSpeed's use_data_before_expert_parallelism. `auto_ep`: who lays DeepSpeed's experts out over tensor-parallel ranks:
    AutoEP (True), the MoE layer (False); None: not said. `reshard_after_forward` None: the framework's default.
    `scatter_gather`: what a pipeline stage sends is divided among the tp ranks (Megatron-LM until 2023), as sequence parallelism does anyway.
    `embedding_as_layer`: the embedding and the output layer take the place of one layer each when layers are spread over stages (Megatron's
    account-for-embedding-in-pipeline-split, DeepSpeed's partition by type, torchtitan's default); None: the framework's default.
    `ep_needs_domain`: the dispatcher of the experts works only inside one NVLink domain (HybridEP, symmetric memory).
    """

    framework: Framework = "megatron"
    order: tuple[str, ...] | None = None
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    dp: int | None = None
    pp: int = 1
    dp_replicate: int | None = None
    dp_shard: int | None = None
    virtual_stages: int = 1
    schedule: Schedule | None = None
    zero_stage: int | None = None
    sequence_parallel: bool | None = None
    optimizer_instances: int = 1
    hierarchical_cp: tuple[int, ...] | None = None
    data_before_expert: bool = False
    auto_ep: bool | None = None
    reshard_after_forward: bool | None = None
    embedding_as_layer: bool | None = None
    scatter_gather: bool = False
    ep_needs_domain: bool = False


class Training(Noun, frozen=True, kw_only=True):
    """Either `micro_batches` per data-parallel replica and step, or `global_batch_size`, from which it follows.

    `gradient_bytes`: bytes of one gradient as it is kept and reduced (4: fp32, 2: bf16); None: the framework's default. `moment_bytes`:
    bytes of both Adam moments of one weight together; None: 8. `recompute`: activations computed again in the backward pass.
    `attention` "flash": fused, the scores are never kept. `fused_loss`: logits are never whole in memory (chunked or fused cross entropy).
    `capacity_factor`: padding of each expert's tokens; None: tokens are not padded. `expert_skew`: tokens of the most loaded rank over the mean, at least 1.
    `dispatch_once_per_node`: the dispatcher sends a token once to each node or NVLink domain that has some of its experts (DeepEP, HybridEP), not once to each expert.
    `dispatch_bytes`: bytes of one element sent to the experts (1: fp8); None: 2. `compiled`: torch.compile. `compiled_loss`: the loss inside it too; None: as `compiled`. `offload_optimizer`: optimizer state in host memory.
    `overlap_tp`: backward tensor-parallel collectives beside matrix products; `overlap_gradients`: their reduction beside the backward pass; `overlap_parameters`:
    gathering updated weights beside the next forward pass. None: the framework's default (plan/defaults.py).
    """

    micro_batches: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    seq_length: int | None = None
    precision: Precision = "bf16"
    optimizer: Optimizer = "adam"
    gradient_bytes: int | None = None
    moment_bytes: int | None = None
    recompute: Recompute = "none"
    attention: Attention = "flash"
    fused_loss: bool = False
    capacity_factor: float | None = None
    expert_skew: float = 1.0
    dispatch_bytes: int | None = None
    dispatch_once_per_node: bool = False
    compiled: bool = False
    compiled_loss: bool | None = None
    offload_optimizer: bool = False
    overlap_tp: bool | None = None
    overlap_gradients: bool | None = None
    overlap_parameters: bool | None = None


class Hardware(Noun, frozen=True, kw_only=True):
    """`gpu` None: nothing claimed. `backend` says what probes use; "gloo" or "auto" declares that a run without GPUs is meant.

    `nodes_per_nvlink_domain` None: not said, a node counts as one domain unless fabric information tells more. Rates are of one GPU, one
    direction, and override its profile. `checkpoint_bytes_per_s`: write rate of the whole job. `node_mtbf_s`: mean time between failures of one node.
    """

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    backend: Backend | None = None
    nodes_per_nvlink_domain: int | None = None
    nvlink_bytes_per_s: int | None = None
    nic_bytes_per_s: int | None = None
    checkpoint_bytes_per_s: int | None = None
    node_mtbf_s: float | None = None


class Launch(Noun, frozen=True, kw_only=True):
    """How the job's processes are started, which decides where each rank sits. None: not said.

    `launcher` None: block placement is assumed. `hosts`: node names in the order in which the allocation lists them. `distribution`: Slurm's
    first field ("block", "cyclic", "plane=4", "arbitrary") or MPI's ("by-slot", "by-node"). `tasks_per_node`: run-length coded as Slurm prints it,
    "2(x3),1". `hostfile`: path of Slurm's arbitrary hostfile, DeepSpeed's hostfile or MPI's rankfile. `rendezvous`: torchrun's ("c10d" or "static").
    `segment`: Slurm's --segment. `master`: the host of MASTER_ADDR. `visible_devices`: CUDA_VISIBLE_DEVICES of every node.
    `slurm_version`: as in "26.05". `topology`: path of a topology file. `node_gpus`: node name -> numbers of the job's GPUs there, by PCI order; None: all are the job's. Never in a plan
    file: it comes from Slurm.
    """

    launcher: Launcher | None = None
    hosts: tuple[str, ...] | None = None
    distribution: str | None = None
    tasks_per_node: str | None = None
    hostfile: str | None = None
    rendezvous: Literal["c10d", "static"] | None = None
    segment: int | None = None
    master: str | None = None
    visible_devices: str | None = None
    slurm_version: str | None = None
    topology: str | None = None
    node_gpus: dict[str, tuple[int, ...]] | None = None


class Rule(Noun, frozen=True, kw_only=True):
    """Override of one check: its worst verdict, whether it is needed for an answer, and its limits by name."""

    severity: Severity | None = None
    need: Need | None = None
    limits: dict[str, float] = {}


class Job(Noun, frozen=True, kw_only=True):
    """One plan file. `source` is its path, for messages."""

    source: str
    model: ModelShape
    parallel: Parallel
    training: Training = Training()
    hardware: Hardware = Hardware()
    launch: Launch = Launch()
    rules: dict[str, Rule] = {}
