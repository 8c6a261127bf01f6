"""Every setting of Apache Kafka 4.3, as rows of text that `config.accepted` reads.

A row is `name type default`, where the default may be `null`, `empty` or, where Kafka has none,
`required`; then in any order the bounds (`least:most`, either of them may be
left out) or the values (`one|other`), `cluster-wide` or `per-broker` if the setting may change
while a broker runs, `internal` if Kafka describes it only where it is given, and `synonym=` with
the broker setting that supplies the default. The indented line below it says what it means; a row
without one is of a setting that a config dataclass declares, and tells Kafka's default.
"""
