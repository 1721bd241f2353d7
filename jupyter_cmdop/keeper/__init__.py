"""The process that holds one session alive: a loop, one mutator, the endpoints, the journal's writer."""
