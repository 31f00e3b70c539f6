#!/bin/bash
# One training node and several sampling nodes in one Slurm job:
#
#   sbatch --nodes=3 examples/ray-slurm.sh grpo-antonyms steps=500
#
# The Python environment with Vigneron and Ray must be on a shared file system, and be active when you submit the job.
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
    echo "error: at least two nodes are needed (--nodes=2): one trains, the others sample" >&2
    exit 2
fi

# Ray frees old weights every 20 ms instead of every second, so that new ones reuse their memory: several times faster.
export RAY_free_objects_period_milliseconds=20

# The head trains: --num-gpus=0 keeps actors off its GPU.
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    ray start --head --node-ip-address="$head" --port=$port --num-gpus=0 --block &

# Workers retry until the head is up.
srun --nodes="$workers" --ntasks="$workers" --exclude="$head" --overlap \
    bash -c "until ray start --address=$head:$port --block; do sleep 2; done" &

# Wait until all nodes of the job have joined.
for _ in $(seq 60); do
    alive=$(srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap python -c \
        "import ray; ray.init('$head:$port', log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))" \
        2>/dev/null | tail -n 1) || alive=0
    [ "${alive:-0}" -ge "${#nodes[@]}" ] && break
    sleep 5
done
[ "${alive:-0}" -ge "${#nodes[@]}" ] || echo "warning: only ${alive:-0} of ${#nodes[@]} nodes have joined: continuing with these" >&2

# One actor per sampling node, each with that node's GPU. The run continues if a sampling node is lost.
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    vigneron train "$@" \
    scale.sampling.kind=ray scale.sampling.actors="$workers" scale.sampling.gpus=1 \
    scale.ray_address="$head:$port"
