#compdef beanstalkd

_arguments -s \
    '*-b+[keep jobs in a binlog in this directory]:DIR:_directories' \
    '*--binlog=[keep jobs in a binlog in this directory]:DIR:_directories' \
    '*-f+[sync the binlog at most MS milliseconds after a write]:MS: ' \
    '*--sync=[sync the binlog at most MS milliseconds after a write]:MS: ' \
    '*-F[never sync the binlog]' \
    '*--no-sync[never sync the binlog]' \
    '*-l+[listen on this address]:ADDR: ' \
    '*--listen=[listen on this address]:ADDR: ' \
    '*-p+[listen on this port or service]:PORT: ' \
    '*--port=[listen on this port or service]:PORT: ' \
    '*-u+[become this user and its group]:USER:_users' \
    '*--user=[become this user and its group]:USER:_users' \
    '*-z+[the largest job body in bytes]:BYTES: ' \
    '*--max-job-size=[the largest job body in bytes]:BYTES: ' \
    '*-s+[the size of a binlog file in bytes]:BYTES: ' \
    '*--binlog-size=[the size of a binlog file in bytes]:BYTES: ' \
    '*--max-memory=[limit the bodies of jobs]:BYTES: ' \
    '*--bury-after=[bury a job when it is lost for the N-th time]:N: ' \
    '*--wait-for-lock[wait while another daemon has the directory of the binlog]' \
    '*--exit-on-binlog-failure=[exit with status 11 when the binlog has failed for SECONDS]:SECONDS: ' \
    '*--busy-poll=[poll for at most USEC microseconds before sleeping]:USEC: ' \
    '*--check-binlog=[print the segments]:DIR:_directories' \
    '*--ping[ask the daemon at -l and -p for a reply and exit]' \
    '*-c[does nothing]' \
    '*-n[does nothing]' \
    '*-v[print the version and exit]' \
    '*--version[print the version and exit]' \
    '*-V[log connections as well]' \
    '*--verbose[log connections as well]' \
    '*-h[print this help and exit]' \
    '*--help[print this help and exit]'
