-- kind: held
-- asks: whether a prompt of probing holds a thread: that is nobody's fault
-- sure: remark
-- says: {Who} is held by `{held}`; `probing -t {pid} continue` lets it go on.
SELECT * FROM ends WHERE how = 'held'
