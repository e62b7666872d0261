@rem kubectl runs this to complete the arguments of kubectl scale_to_zero.
@kubectl scale_to_zero __complete %*
