"""What `querylect answers` and `querylect paper` share: right answers, the reader, metrics, judges, records."""
