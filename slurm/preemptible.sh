#!/bin/bash
# Runs in a partition whose jobs may be preempted, and for longer than its time limit: 120 s before the end
# the ranks are told to write a checkpoint and end with code 75; the job then goes back into the queue and
# continues from there.
#
#   sbatch slurm/preemptible.sh COMMAND [ARGUMENT]...
#
# A job file needs less: hvdtrain submit --requeue --nodes 2 --time 4:00:00 JOB.yaml
#
#SBATCH --job-name=preemptible
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=4:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.out

# When the time is over, for hvdtrain train to save before: Slurm tells it itself since 23.02.
if [[ -z ${SLURM_JOB_END_TIME:-} ]]; then
  end=$(SLURM_TIME_FORMAT=standard squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e)
  [[ $end != [0-9]* ]] || export HVDTRAIN_END_TIME="$(date --date="$end" +%s)"
fi

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
# A job that is not running any more was cancelled, or Slurm itself will run it again.
if ((code == 75 && ${SLURM_RESTART_COUNT:-0} < 20)) &&
  [[ $(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T) == RUNNING ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
