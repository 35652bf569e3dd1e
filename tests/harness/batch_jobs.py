"""Does the jobs of batches one by one."""


async def run_job(worker):
    """Do one job, or delete results of a batch that has ended. Return whether there was either."""
    taken = await worker.take_work()
    if taken.job:
        await worker.do(taken.job)
    return taken.job is not None or taken.has_dropped
