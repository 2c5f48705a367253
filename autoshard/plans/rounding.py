"""Six significant digits: no prediction is better, and the last bit must not depend on the machine."""

from autoshard.cost.values import Estimate, StageMemory, Term, six_digits


def rounded(estimate: Estimate) -> Estimate:
    """Every predicted number with six digits; the capacity is an input and stays exact."""
    memory = tuple(StageMemory(one.pipeline_rank, _rounded_terms(one.terms)) for one in estimate.memory)
    return Estimate(
        step_time_s=six_digits(estimate.step_time_s),
        time_terms=_rounded_terms(estimate.time_terms),
        memory=memory,
        memory_capacity_bytes=estimate.memory_capacity_bytes,
        tokens_per_s=six_digits(estimate.tokens_per_s),
        mfu=six_digits(estimate.mfu),
        model_flops_per_step=six_digits(estimate.model_flops_per_step),
        step_time_low_s=six_digits(estimate.step_time_low_s),
        step_time_high_s=six_digits(estimate.step_time_high_s),
        fits_probability=six_digits(estimate.fits_probability),
    )


def _rounded_terms(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    return tuple(Term(term.name, six_digits(term.value)) for term in terms)
