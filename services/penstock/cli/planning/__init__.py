"""`penstock simulate`: runs of scenarios, calibration of the step time model, and capacity plans."""
