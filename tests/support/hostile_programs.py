"""Programs that mean harm, for every place that a sandbox is in.

Each attempt is an expression; what it comes to is told by name. What must not succeed fails with one of REFUSED.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

REFUSED = {
    *("Permission denied", "Operation not permitted", "Function not implemented", "No such file or directory"),
    *("Read-only file system", "No such process", "Invalid cross-device link", "Bad file descriptor"),
    *("not allowed to raise maximum limit", "Address family not supported by protocol", "Not a directory", "nothing"),
}
_ATTEMPTS = """
import ctypes, glob, json, os, resource, signal, socket, subprocess, sys
told, libc = {}, ctypes.CDLL(None, use_errno=True)
worker, secret, port, abstract = (PLACES[name] for name in ("worker", "secret", "port", "abstract"))
def attempt(name, function):
    try:
        found = function()
        told[name] = f"did: {found!r:.200}" if found else "nothing"
    except OSError as error:
        told[name] = os.strerror(error.errno)
    except ValueError as error:
        told[name] = str(error)
def call(function, *arguments):
    result = function(*(ctypes.c_long(value) if isinstance(value, int) else value for value in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ["done"]
def connected(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as made:
        made.settimeout(5)
        made.connect(address)
        return ["connected"]
def killed(pid, number):
    os.kill(pid, number)
    return ["sent"]
def became(user):
    before = os.getuid()
    try:
        os.setuid(user)
    except OSError:
        return False
    return os.getuid() != before
def read(path):
    with open(path, "rb") as file:
        return file.read(100)
held = ctypes.create_string_buffer(64)
byte = ((ctypes.c_size_t * 2)(ctypes.addressof(held), 1), 1)
"""
FORBIDDEN = {
    # The worker's credentials and environment.
    "read_secret": "read(secret)",
    "read_secret_by_a_link": "os.symlink(secret, 'link') or read('link')",
    "read_secret_by_a_hard_link": "os.link(secret, 'hard') or read('hard')",
    "remove_secret": "os.remove(secret) or ['removed']",
    "read_token": "read('/var/run/secrets/kubernetes.io/serviceaccount/token')",
    "read_pod_secrets": "os.listdir('/trimtab/secrets')",
    "read_job": "os.listdir('/trimtab/job')",
    "read_environment": "read(f'/proc/{worker}/environ')",
    "read_first_environment": "read('/proc/1/environ')",
    "read_guards_environment": "read(f'/proc/{os.getppid()}/environ')",
    "read_any_environment": "[path for path in glob.glob('/proc/[0-9]*/environ') if path.split('/')[2] not in"
    " ('self', str(os.getpid())) and os.access(path, os.R_OK) and read(path)]",
    "see_descriptors": "os.readlink(f'/proc/{os.getppid()}/fd/0')",
    "walk_by_a_root": "os.listdir(f'/proc/{os.getppid()}/root/')",
    "walk_by_a_folder": "os.listdir(f'/proc/{os.getppid()}/cwd/')",
    "read_shadow": "read('/etc/shadow')",
    "read_home": "os.listdir('/root/.ssh') + os.listdir('/home')",
    "read_kernel": "read('/proc/kcore') or read('/proc/kallsyms')",
    # The network, by every family.
    "connect": "connected(socket.AF_INET, ('127.0.0.1', port))",
    "connect_by_ipv6": "connected(socket.AF_INET6, ('::ffff:127.0.0.1', port))",
    "send_a_datagram": "connected(socket.AF_INET, ('127.0.0.1', port), socket.SOCK_DGRAM)",
    "connect_to_an_abstract_name": "connected(socket.AF_UNIX, abstract)",
    "listen": "socket.create_server(('127.0.0.1', 0)) and ['listening']",
    "listen_on_a_path": "socket.socket(socket.AF_UNIX).bind('here') or ['listening']",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) and ['made']",
    "vsock": "socket.socket(40, socket.SOCK_STREAM) and ['made']",
    "packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW) and ['made']",
    "raw": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) and ['made']",
    "bluetooth": "socket.socket(31, socket.SOCK_RAW) and ['made']",
    "algorithms": "socket.socket(38, socket.SOCK_SEQPACKET) and ['made']",
    "datagram_pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) and ['made']",
    "ring": "call(libc.syscall, 425, 8, ctypes.create_string_buffer(120))",
    # Other processes.
    "attach_to_the_guard": "call(libc.ptrace, 16, os.getppid(), 0, 0)",
    "seize_the_guard": "call(libc.ptrace, 0x4206, os.getppid(), 0, 0)",
    "attach_to_the_worker": "call(libc.ptrace, 16, worker, 0, 0)",
    "read_memory": "read(f'/proc/{os.getppid()}/mem')",
    "read_by_process_vm": "call(libc.process_vm_readv, os.getppid(), *byte, *byte, 0)",
    "take_a_descriptor": "call(libc.syscall, 438, 3, 0, 0)",
    "pidfd": "call(libc.syscall, 434, os.getppid(), 0)",
    "kill_the_worker": "killed(worker, signal.SIGKILL)",
    "limit_the_guard": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)) and ['limited']",
    "slow_the_guard": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19) or ['slowed']",
    "slow_all": "os.setpriority(os.PRIO_USER, 0, 19) or ['slowed']",
    "pin_the_guard": "os.sched_setaffinity(os.getppid(), {0}) or ['pinned']",
    # The kernel.
    "mount": "call(libc.mount, b'none', b'/', b'tmpfs', 0, None)",
    "remount": "call(libc.mount, None, b'/', None, 32 | 4096, None)",
    "unmount": "call(libc.umount2, b'/proc', 2)",
    "chroot": "os.chroot('.') or ['done']",
    "new_namespaces": "call(libc.unshare, 0x10000000)",
    "clone_into_namespaces": "call(libc.syscall, 56, 0x10000000 | 17, 0, 0, 0, 0)",
    "setns": "call(libc.setns, os.open('/proc/self/ns/mnt', os.O_RDONLY), 0)",
    "become_another": "[user for user in (0, 1, 1000, 65532) if became(user)]",
    "keyring": "call(libc.syscall, 250, 0, -3, 0)",
    "add_key": "call(libc.syscall, 248, b'user', b'x', b'y', 1, -3)",
    "inotify": "call(libc.inotify_init1, 0)",
    "fanotify": "call(libc.fanotify_init, 0, 0)",
    "bpf": "call(libc.syscall, 321, 0, None, 0)",
    "performance": "call(libc.syscall, 298, held, 0, -1, -1, 0)",
    "userfaultfd": "call(libc.syscall, 323, 0)",
    "handle": "call(libc.syscall, 304, -100, held, 0)",
    "shared_memory": "call(libc.shmget, 0, 4096, 0o1600)",
    "messages": "call(libc.msgget, 0, 0o1600)",
    "memory_file": "os.memfd_create('x') and ['made']",
    "core_pattern": "open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/sh') and ['wrote']",
    "system_request": "open('/proc/sysrq-trigger', 'w') and ['opened']",
    "write_a_program": "open(os.__file__, 'a') and ['opened']",
    "write_in_usr": "open('/usr/lib/x', 'w') and ['opened']",
    "write_at_the_top": "open('/x', 'w') and ['opened']",
    "write_in_etc": "open('/etc/x', 'w') and ['opened']",
    "make_a_device": "os.mknod('disk', 0o60600, os.makedev(8, 0)) or ['made']",
    "disk": "glob.glob('/dev/[shv]d*') + glob.glob('/dev/nvme*') + glob.glob('/dev/mem')",
    "core_dumps": "resource.getrlimit(resource.RLIMIT_CORE) != (0, 0)",
    "raise_a_limit": "resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20)) or ['raised']",
}
NEEDED = {
    "write_its_folder": "open('mine', 'w').write('x') and [os.mkdir('inner'), os.rename('mine', 'inner/mine')]",
    "write_what_is_temporary": "open(os.environ['TMPDIR'] + '/x', 'w').write('x')",
    "run_programs": "[subprocess.run(['/bin/sh', '-c', 'echo x > /dev/null && ls /usr'], check=True, stdout=-3)]",
    "run_python": "[subprocess.run([sys.executable, '-c', 'import ssl, json, ctypes'], check=True)]",
    "pair": "[socket.socketpair()]",
    "draw": "open('/dev/urandom', 'rb').read(8)",
    "threads": "[__import__('concurrent.futures').futures.ThreadPoolExecutor(4).submit(len, 'x').result()]",
    "limit_itself": "[resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))]",
}


def attempts(of: Mapping[str, str], *, worker: int, secret: str, port: int, abstract: str) -> str:
    """A program that tries them all and prints what became of each."""
    places = {"worker": worker, "secret": secret, "port": port, "abstract": abstract}
    lines = [f"attempt({name!r}, lambda: {what})" for name, what in of.items()]
    return "\n".join([f"PLACES = {places!r}", _ATTEMPTS, *lines, "print(json.dumps(told))"])


def outcomes(printed: bytes) -> dict[str, str]:
    told: dict[str, str] = json.loads(printed.splitlines()[-1])
    return told


# What fills, hangs or litters. All of them go on for ever where nothing bounds them.
FLOODS = {
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "threads": "import threading, time\nthreading.stack_size(65536)\nn = 0\n"
    "while True:\n    try: threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); n += 1\n"
    "    except RuntimeError: time.sleep(0.01)",
    "memory": "import os\nfor _ in range(8): os.fork()\nheld = []\nwhile True:\n"
    "    try: held.append(bytearray(1 << 22))\n    except MemoryError: pass",
    "shared_memory": "import mmap, os\nfor _ in range(3): os.fork()\nheld = []\nwhile True:\n"
    "    held.append(mmap.mmap(-1, 1 << 22)); held[-1][:] = bytes(1 << 22)",
    "disk": "import os\nn = 0\nwhile True:\n    n += 1\n    try: open(f'{n % 500}', 'ab').write(bytes(1 << 20))\n"
    "    except OSError: pass",
    "empty_files": "n = 0\nwhile True:\n    n += 1\n    try: open(str(n), 'x').close()\n    except OSError: pass",
    "unlinked_files": "import os\nheld = []\nwhile True:\n    try:\n        f = open('x', 'wb', 0); held.append(f)\n"
    "        os.unlink('x'); f.write(bytes(1 << 20))\n    except OSError: pass",
    "deep_folders": "import os\nwhile True:\n    try: os.mkdir('d' * 200); os.chdir('d' * 200)\n"
    "    except OSError: break\nimport time; time.sleep(600)",
    "output": "import sys\nwhile True: sys.stdout.write('x' * 65536)",
    "errors": "import sys\nwhile True: sys.stderr.write('x' * 65536)",
    "deaf": "import signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\ntime.sleep(600)",
    "sleeping_children": "import os, time\nfor _ in range(8):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(600)",
    "spinning": "while True: pass",
    "signals": "import os, signal\nwhile True:\n    for n in range(1, 65):\n        for pid in (1, os.getppid(), -1):\n"
    "            try: os.kill(pid, n)\n            except OSError: pass",
    "stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
}
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        for descriptor in range(3): os.close(descriptor)
        while True:
            os.fork() and os._exit(0)
            time.sleep(0.01)
    os._exit(0)
print("gone")
"""
