# shellcheck shell=bash
# Slurm on the lab's hosts: munged and slurmctld on head, a slurmd on each; sourced by `lab`.

# has_pmix_library: whether Slurm's plugin for `srun --mpi=pmix` finds what it opens under this name.
has_pmix_library() {
  compgen -G '/usr/lib/*/libpmix.so' > /dev/null || compgen -G '/usr/lib/*/pmix2/lib/libpmix.so' > /dev/null
}

# check_slurm: one line on what is missing and exit 2. The library has to be there before slurmd starts:
# one that started without it loses the steps that ask for it later.
check_slurm() {
  need munged munge slurmctld slurmd sinfo srun sbatch
  has_pmix_library || refuse "missing: libpmix.so; run tests/lab/install"
}

slurm_is_up() {
  recorded "$LAB/slurmctld.pid" > /dev/null
}

# write_slurm_files: configuration, key and fake GPUs.
write_slurm_files() {
  local folder=$LAB/slurm gpu
  rm -rf "$folder"
  mkdir -p "$folder/state" "$folder/spool" "$folder/munge" "$folder/dev"
  chmod 711 "$folder/munge"
  (umask 077 && head -c 128 /dev/urandom > "$folder/munge/key")
  # slurmd counts only GPUs that are character devices
  for ((gpu = 0; gpu < LAB_GPUS; gpu++)); do mknod "$folder/dev/nvidia$gpu" c 1 3; done
  fill slurm.conf > "$folder/slurm.conf"
  fill gres.conf > "$folder/gres.conf"
  # slurmd looks which cgroups there are though it is to use none; version 1 needs no systemd
  echo "CgroupPlugin=cgroup/v1" > "$folder/cgroup.conf"
  : > "$folder/plugstack.conf"
}

start_slurm() {
  local host folder=$LAB/slurm
  write_slurm_files
  # one munged for all: its socket is a path, and a path is found from every network namespace
  start_daemon munged head munged --foreground --force --num-threads=4 --key-file="$folder/munge/key" \
    --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed"
  await 10 inhost head munge --no-input --socket="$folder/munge/socket" > /dev/null 2>&1 ||
    die "munged does not answer: $(tail -n 3 "$LAB/log/munged.log")"
  start_daemon slurmctld head env SLURM_CONF="$folder/slurm.conf" slurmctld -D -c
  for host in $(hosts); do start_slurmd "$host"; done
  await 20 all_idle || die "the nodes do not come up; logs in $LAB/log: $(node_states 2>&1 | tr '\n' ' ')"
}

# start_slurmd HOST: after the host was off, or its slurmd was killed.
start_slurmd() {
  recorded "$LAB/slurmd.$1.pid" > /dev/null && return
  mkdir -p "$LAB/slurm/spool/$1"
  start_daemon "slurmd.$1" "$1" env SLURM_CONF="$LAB/slurm/slurm.conf" slurmd -D -N "$1"
}

# node_states: the state of each node, a line each.
node_states() {
  inhost head env SLURM_CONF="$LAB/slurm/slurm.conf" timeout 5 sinfo --noheader --Node --format=%T
}

all_idle() {
  [[ $(node_states 2> /dev/null | grep -c '^idle$') == "$(< "$LAB/size")" ]]
}
