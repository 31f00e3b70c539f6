#!/bin/bash
# One training node and several that sample, in one Slurm job:
#
#   sbatch --nodes=3 examples/ray-slurm.sh grpo-antonyms steps=500
#
# The environment with Vigneron and Ray must be on a file system that every node sees, and be active when you submit.
#SBATCH --job-name=vigneron
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --output=vigneron-%j.log

set -euo pipefail
if [ $# -lt 1 ]; then
    echo "usage: sbatch --nodes=N $0 RECIPE [key=value ...]" >&2
    exit 2
fi

port=6379
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
workers=$((${#nodes[@]} - 1))
if [ "$workers" -lt 1 ]; then
    echo "ask for two nodes or more: one trains, the others sample" >&2
    exit 2
fi

# Ray frees old weights at once, not once a second: new ones then go where they were, which is several times faster.
export RAY_free_objects_period_milliseconds=20

# The head trains: Ray is told that it has no GPU, so that no actor is put there.
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    ray start --head --node-ip-address="$head" --port=$port --num-gpus=0 --block &

# Workers try again until the head is there.
srun --nodes="$workers" --ntasks="$workers" --exclude="$head" --overlap \
    bash -c "until ray start --address=$head:$port --block; do sleep 2; done" &

# Ray is ready when it counts as many nodes as the job has.
for _ in $(seq 60); do
    alive=$(srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap python -c \
        "import ray; ray.init('$head:$port', log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))" \
        2>/dev/null | tail -n 1) || alive=0
    [ "${alive:-0}" -ge "${#nodes[@]}" ] && break
    sleep 5
done
[ "${alive:-0}" -ge "${#nodes[@]}" ] || echo "Ray counts ${alive:-0} of ${#nodes[@]} nodes: going on with those" >&2

# One actor for each node that samples, each with that node's GPU. A node that is lost meanwhile ends nothing.
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    vigneron train "$@" \
    scale.sampling.kind=ray scale.sampling.actors="$workers" scale.sampling.gpus=1 \
    scale.ray_address="$head:$port"
