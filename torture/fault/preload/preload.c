/*
 * Preloaded into a server: while a file says so, its disk is full, or its clock
 * is wrong. The file is mapped, so that what it says is known at once, in
 * signal handlers, too. The engine is not concerned: Go asks the kernel itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

typedef struct Switches
{
	_Atomic int64_t ahead;		/* of the clock, in microseconds */
	_Atomic int64_t full;		/* no file can grow any more */
	_Atomic int64_t refused;	/* so many times that was said */
} Switches;

static Switches none;
static Switches *switches = &none;

static ssize_t (*real_write) (int, const void *, size_t);
static ssize_t (*real_pwrite) (int, const void *, size_t, off_t);
static ssize_t (*real_pwritev) (int, const struct iovec *, int, off_t);
static int	(*real_fallocate) (int, off_t, off_t);
static int	(*real_gettimeofday) (struct timeval *, void *);
static int	(*real_clock_gettime) (clockid_t, struct timespec *);

__attribute__((constructor))
static void
begin(void)
{
	const char *path = getenv("WED_SQL_SWITCHES");
	int			fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	real_write = dlsym(RTLD_NEXT, "write");
	real_pwrite = dlsym(RTLD_NEXT, "pwrite");
	real_pwritev = dlsym(RTLD_NEXT, "pwritev");
	real_fallocate = dlsym(RTLD_NEXT, "posix_fallocate");
	real_gettimeofday = dlsym(RTLD_NEXT, "gettimeofday");
	real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
	if (fd >= 0)
	{
		void	   *mapped = mmap(NULL, sizeof(Switches), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (mapped != MAP_FAILED)
			switches = mapped;
		close(fd);
	}
}

/* Whether a file, not a pipe or the log, would have to grow beyond its end; offset -1: the descriptor's own. */
static int
refuses(int fd, off_t offset, size_t len)
{
	struct stat st;

	if (!atomic_load(&switches->full) || fd <= STDERR_FILENO || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		return 0;
	if (offset < 0)
		offset = lseek(fd, 0, SEEK_CUR);
	if (offset + (off_t) len <= st.st_size)
		return 0;
	atomic_fetch_add(&switches->refused, 1);
	return 1;
}

ssize_t
write(int fd, const void *buf, size_t len)
{
	if (refuses(fd, -1, len))
	{
		errno = ENOSPC;
		return -1;
	}
	return real_write(fd, buf, len);
}

ssize_t
pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	if (refuses(fd, offset, len))
	{
		errno = ENOSPC;
		return -1;
	}
	return real_pwrite(fd, buf, len, offset);
}

ssize_t
pwrite64(int fd, const void *buf, size_t len, off_t offset)
{
	return pwrite(fd, buf, len, offset);
}

static size_t
total(const struct iovec *iov, int n)
{
	size_t		len = 0;

	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	return len;
}

ssize_t
pwritev(int fd, const struct iovec *iov, int n, off_t offset)
{
	if (refuses(fd, offset, total(iov, n)))
	{
		errno = ENOSPC;
		return -1;
	}
	return real_pwritev(fd, iov, n, offset);
}

ssize_t
pwritev64(int fd, const struct iovec *iov, int n, off_t offset)
{
	return pwritev(fd, iov, n, offset);
}

int
posix_fallocate(int fd, off_t offset, off_t len)
{
	if (refuses(fd, offset, len))
		return ENOSPC;
	return real_fallocate(fd, offset, len);
}

int
posix_fallocate64(int fd, off_t offset, off_t len)
{
	return posix_fallocate(fd, offset, len);
}

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	int			result = real_gettimeofday(tv, tz);
	int64_t		now = (int64_t) tv->tv_sec * 1000000 + tv->tv_usec + atomic_load(&switches->ahead);

	tv->tv_sec = now / 1000000;
	tv->tv_usec = now % 1000000;
	return result;
}

int
clock_gettime(clockid_t clock, struct timespec *ts)
{
	int			result = real_clock_gettime(clock, ts);
	int64_t		ahead = atomic_load(&switches->ahead);

	if (result == 0 && clock == CLOCK_REALTIME)
		ts->tv_sec += ahead / 1000000;	/* moved by whole seconds */
	return result;
}

time_t
time(time_t *at)
{
	struct timeval tv;

	gettimeofday(&tv, NULL);
	if (at)
		*at = tv.tv_sec;
	return tv.tv_sec;
}
