#!/usr/bin/env bash
# A job on a workstation or on several nodes; degrees by name of the model.
set -euo pipefail

MODEL=${MODEL:-large}
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-16}
WORLD=$((GPUS_PER_NODE * NUM_NODES))

if [ "$MODEL" = "small" ]; then
  LAYERS=32; HIDDEN=4096; FFN=14336; HEADS=32
  TP=2; PP=1
elif [[ $MODEL == large ]]; then
  LAYERS=80
  HIDDEN=8192
  FFN=28_672
  HEADS=64
  TP=8
  PP=4
else
  echo "no such model"; exit 1
fi

DISTRIBUTED_ARGS=(
  --nproc_per_node $GPUS_PER_NODE
  --nnodes $NUM_NODES
  --node_rank ${NODE_RANK:-0}
  --master_addr ${MASTER_ADDR:-node001}
)

MODEL_ARGS=(
  --use-mcore-models
  --num-layers $LAYERS
  --hidden-size $HIDDEN
  --ffn-hidden-size $FFN
  --num-attention-heads $HEADS
  --group-query-attention
  --num-query-groups 8
  --swiglu              # three matrices
  --untie-embeddings-and-output-weights
  --position-embedding-type rope
  --vocab-size 128256
  --hidden-dropout 0.0
  --seq-length 8192 --max-position-embeddings 8192
)

PARALLEL_ARGS=(
  --tensor-model-parallel-size=${TP}
  --pipeline-model-parallel-size=${PP}
  --num-layers-per-virtual-pipeline-stage 5
  --context-parallel-size 2
  --sequence-parallel
  --use-distributed-optimizer
  --overlap-grad-reduce
  --use-tp-pp-dp-mapping
)

TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size $((WORLD / TP / PP * 32)) --bf16 --recompute-activations)
[ -n "${EXTRA:-}" ] && TRAINING_ARGS+=(--grad-reduce-in-bf16)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${PARALLEL_ARGS[@]}" \
    "${TRAINING_ARGS[@]}" \
    --save "/data/checkpoints"
