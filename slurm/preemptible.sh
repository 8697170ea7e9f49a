#!/bin/bash
# Runs in a partition whose jobs may be preempted, and for longer than its time limit: 120 s before the end
# the ranks are told to write a checkpoint and end with code 75; the job then goes back into the queue and
# continues from there.
#
#   sbatch slurm/preemptible.sh COMMAND [ARGUMENT]...
#
#SBATCH --job-name=preemptible
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=4:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.out

# Slurm signals this shell only, which hands the signal on.
trap 'kill -USR1 $! 2> /dev/null' USR1
trap 'kill -TERM $! 2> /dev/null' TERM
hvdtrain run -- "$@" &
launcher=$!
while kill -0 "$launcher" 2> /dev/null; do
  wait "$launcher"
done
wait "$launcher"
code=$?
if ((code == 75)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
