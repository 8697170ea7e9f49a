#!/bin/bash
# Trains on two nodes with four GPUs each, one rank per GPU:
#
#   sbatch slurm/gpu-training.sh [JOB.yaml] [--set KEY=VALUE]...
#
#SBATCH --job-name=gpu-training
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --output=slurm-%j.out

# hvdtrain run finds nodes, ranks and GPUs in the job, and takes srun or mpirun, whichever fits the MPI.
exec hvdtrain run -- hvdtrain train --run-dir "runs/$SLURM_JOB_NAME-$SLURM_JOB_ID" "$@"
