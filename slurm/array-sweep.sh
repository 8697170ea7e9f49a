#!/bin/bash
# Tries four learning rates, a job each, two of them at a time:
#
#   sbatch slurm/array-sweep.sh [JOB.yaml] [--set KEY=VALUE]...
#
#SBATCH --job-name=array-sweep
#SBATCH --array=0-3%2
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --time=2:00:00
#SBATCH --output=slurm-%A_%a.out

rates=(0.02 0.05 0.1 0.2)
rate=${rates[$SLURM_ARRAY_TASK_ID]}

exec hvdtrain run -- hvdtrain train --set "optimizer.lr=$rate" \
  --run-dir "runs/sweep-$SLURM_ARRAY_JOB_ID/lr-$rate" "$@"
