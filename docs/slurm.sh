#!/bin/bash
# Trains on several machines of a SLURM cluster, four GPUs each; sbatch docs/slurm.sh [options of train_cifar.py].
#
# The run folder and the data must lie where all machines see them. SLURM sends SIGTERM before the time is up; the run
# saves its state, and the script puts itself into the queue again until the run is finished.
#SBATCH --job-name=patchwords
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

set -u
export PATCHWORDS_DATA=${PATCHWORDS_DATA:-$SLURM_SUBMIT_DIR/data}
out=$SLURM_SUBMIT_DIR/runs/slurm-$SLURM_JOB_ID  # the number stays the same when the job is queued again
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
resume=()
if [ -e "$out/last.pt" ]; then resume=(--resume); fi

cd "$SLURM_SUBMIT_DIR" || exit 1
srun torchrun \
    --nnodes="$SLURM_NNODES" \
    --nproc-per-node="$SLURM_GPUS_ON_NODE" \
    --rdzv-backend=c10d \
    --rdzv-endpoint="$first:29500" \
    --rdzv-id="$SLURM_JOB_ID" \
    --max-restarts=3 \
    train_cifar.py --out "$out" "${resume[@]}" "$@"
code=$?

# Not finished and nothing wrong with the options: the time was up, or a machine failed.
if [ ! -e "$out/metrics.json" ] && [ -e "$out/last.pt" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
