"""What is wrong with a running fleet, or on the way to one endpoint: facts first, then findings from pure functions over them."""
