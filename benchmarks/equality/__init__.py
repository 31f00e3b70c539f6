"""Parts of `benchmarks.same_runs`: cases, materials, the worker that runs them, the comparison, the speed."""
