#!/bin/bash
# Submits two jobs; the second one starts when the first one succeeded, and never if it did not:
#
#   slurm/train-then-evaluate.sh "hvdtrain train job.yaml" "python evaluate.py"
#
# Each argument is a command for all ranks. Options for both jobs, such as --partition=gpu, stand in
# SUBMIT_OPTIONS or, for good, in ~/.config/hvdtrain/site.yaml.
set -euo pipefail

read -r -a train <<< "$1"
read -r -a evaluate <<< "$2"
read -r -a options <<< "${SUBMIT_OPTIONS:-}"

# prints "job 12"
first=$(hvdtrain submit --name=train "${options[@]}" -- "${train[@]}")
first=${first#job }
second=$(hvdtrain submit --name=evaluate --dependency="afterok:$first" "${options[@]}" -- "${evaluate[@]}")
echo "train: $first, evaluate: ${second#job }"
